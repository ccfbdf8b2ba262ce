"""`pgstream demo`: the whole way on real input, from an empty folder to a proof, in minutes."""
