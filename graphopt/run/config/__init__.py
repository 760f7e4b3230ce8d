"""From yaml to objects: composing, checking, building, and configurations in files."""
