"""Commands on a box: started, talked with, left to themselves and found again."""
