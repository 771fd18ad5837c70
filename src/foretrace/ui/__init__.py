"""A local web server that shows a folder of recordings, traces and predictions."""
