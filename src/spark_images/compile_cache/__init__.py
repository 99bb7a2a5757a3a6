"""The compile cache shared between runners: ccache's entries in a store that all of them reach, and no step does."""
