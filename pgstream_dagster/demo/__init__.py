"""
`pgstream demo` and `dev`: a whole pipeline on real data, from an empty folder, in minutes.

An empty folder goes in; a proof comes out. May import the whole engine, and alone in the package
`embedded`. Read `run`, then `dev`.
"""
