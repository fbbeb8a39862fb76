"""The training recipe as records without a framework: how weights move, at which rate, and for how long."""
