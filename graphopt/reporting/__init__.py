"""From rows and decision files to tables, curves and pictures. Nothing here imports torch."""
