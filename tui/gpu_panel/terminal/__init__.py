"""What the panel asks of a terminal beyond what Textual does: is it light, a bell, plain ASCII."""
