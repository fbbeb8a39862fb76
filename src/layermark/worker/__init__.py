"""The worker: prepares one program, measures when told to, and exits. Started as `python -m layermark.worker FD`."""
