"""One file per kind of data set; the file's name is what `--source` takes."""
