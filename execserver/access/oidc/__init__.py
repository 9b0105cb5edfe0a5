"""Who comes with a JSON Web Token of an OpenID Connect provider."""
