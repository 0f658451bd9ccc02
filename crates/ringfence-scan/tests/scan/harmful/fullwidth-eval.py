𝘦𝘷𝘢𝘭("__imp" + "ort__('os').getpid()")
