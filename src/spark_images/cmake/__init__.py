"""CMake files read as text, as far as it takes to see what they fetch."""
