"""Memory: page-locked and device buffers that are used again, figures of what is in use, arrays kept on disk."""
