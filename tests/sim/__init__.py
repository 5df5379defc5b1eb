"""A fleet of paged engines in discrete time, and the autoscalers that try to keep it fed."""
