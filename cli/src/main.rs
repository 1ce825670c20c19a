//! The planaria command line.

fn main() {}
