echo "about to start $2 ranks"
torchrun --standalone --nproc-per-node="$2" "$1"
