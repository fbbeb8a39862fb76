"""Programs written by hand, one module per runtime: what Layermark's own are held against."""
