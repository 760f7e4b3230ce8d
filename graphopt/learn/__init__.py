"""Methods that learn, their encoders and their samples."""
