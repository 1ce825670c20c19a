//! The simulator's tests, in one binary.

mod alive;
mod detection;
mod large;
mod membership;
mod rig;
mod swarm;
mod walkthroughs;
