"""What attention heads read: captured in bounded memory, turned into motifs and contacts."""
