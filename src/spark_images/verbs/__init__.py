"""The verbs of the command line, by what they are about; each module adds its own with `add(verbs)`."""
