"""`pgstream demo` and `dev`: a whole pipeline on real data, from an empty folder, in minutes."""
