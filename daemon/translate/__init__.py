"""Between the two formats, purely: schema, partition values, metrics and the plan of one commit."""
