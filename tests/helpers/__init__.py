"""What several test modules share: corpus writers, fake stores, a strict duck array, comparisons."""
