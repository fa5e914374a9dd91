"""Translates between the two formats: schema, partition values, metrics and the plan of one commit. All is pure."""
