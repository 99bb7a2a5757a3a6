"""Images in a registry: pushed, signed, promoted, listed, pulled and pruned, each as a module of its own."""
