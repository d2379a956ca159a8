//! Local sockets that only the owner can reach.
