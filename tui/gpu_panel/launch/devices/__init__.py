"""The devices pane: the devices to run on, how busy they are, and which are ticked."""
