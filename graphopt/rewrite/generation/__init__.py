"""Where rules come from: enumeration, other systems, cases to try them on."""
