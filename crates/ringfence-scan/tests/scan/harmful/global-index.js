const key = "ev" + "al";
globalThis[key]("1+1");
