"""Back ends: what a machine offers, which back end a plan gets, what bubblewrap and Landlock need."""
