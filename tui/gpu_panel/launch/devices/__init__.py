"""The devices pane: what there is to run on, how busy it is, what is ticked."""
