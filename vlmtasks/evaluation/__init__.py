"""Measures of quality, each by the rules of the benchmark it comes from.

coco_ap        box and mask AP of COCO
referring      RefCOCO: mIoU, cIoU, gIoU, box accuracy
vqa            VQA accuracy, ANLS, ChartQA's relaxed accuracy, POPE, counting
captions       CIDEr, BLEU, ROUGE-L, METEOR
text_metrics   CER, WER, text spotting
oracle         what the tokens themselves can reach, without a model
run            a run that survives being killed; stamp: what was run, with what
report         one HTML page to look at
"""
