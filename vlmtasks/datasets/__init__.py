"""Data sets in and out: every reader gives a `CocoDataset`, every mistake its file and place.

coco                 instances, captions and results of COCO, read and written
jsonl                one JSON object a line: training examples, predictions
folder, voc, yolo    a folder of pictures, PASCAL VOC XML, YOLO text
paths                where a picture lies that a data file names
paligemma_examples   annotations as the prefix and suffix that a model learns from
loss_layout          which tokens of an example are learnt, and who sees whom
"""
