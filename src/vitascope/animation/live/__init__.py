"""The portrait, live: a camera in, pictures to any number of sinks out, the newest of everything first."""
