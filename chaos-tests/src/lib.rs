//! Simulator swarms, invariants, real-process chaos.
