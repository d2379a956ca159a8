//! What of our environment a worker gets.
