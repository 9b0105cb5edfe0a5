"""Making dist/execserver and dist/execserver.pyz: what goes in, how it is laid out, what comes out."""
