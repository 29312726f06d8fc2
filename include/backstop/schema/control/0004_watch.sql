-- Predicted loss and who watches Backstop.
COMMENT ON TABLE watermark IS 'How far a reader in time order has got';
