"""How the demo's model is made: texts, tokenizer, training, measurement, the folder that ships."""
