"""Token ids in, token ids out; and from ids to the text a person sees."""
