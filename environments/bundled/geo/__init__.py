"""What geo-qa is made of: facts from GeoNames, passages about them, questions."""
