"""What is counted, scored and ranked. No HTTP here."""
