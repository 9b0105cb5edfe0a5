"""Remote mode: sign-in, registration, the websocket to the rendezvous, and the streams it carries."""
