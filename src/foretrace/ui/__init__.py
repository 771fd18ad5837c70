"""A small server that shows a folder of recordings, traces and forecasts, to who sits at this machine."""
