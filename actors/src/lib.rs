//! The protocol (pure) and the actors that execute it; the trainer.
