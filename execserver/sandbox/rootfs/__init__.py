"""The sandbox root: built from a plan, or recorded once per plan and then replayed."""
