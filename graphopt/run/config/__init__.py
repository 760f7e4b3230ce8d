"""From yaml to objects: composing, checking, building, and what files say of a configuration."""
