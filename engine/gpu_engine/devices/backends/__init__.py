"""One file or group of files a vendor: find its devices, read them, put its errors into words."""
