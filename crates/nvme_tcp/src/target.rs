//! The controller's end: queues, controllers, and the commands that they take.

pub mod connect;
pub mod io;
pub mod properties;
pub mod queue;
