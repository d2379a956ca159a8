//! Kinds of agents: whether each can be used, and how it is started.
