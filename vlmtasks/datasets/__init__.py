"""Data sets in and out: every reader gives a `CocoDataset`, every mistake its file and place.

coco                 the data set itself, written as a COCO file
coco_reader, coco_results   instances, captions and results of COCO, read
jsonl, detection_jsonl      one JSON object a line; training examples as a data set
folder, voc, yolo    a folder of pictures, PASCAL VOC XML, YOLO text
paths                where a picture lies that a data file names
paligemma_examples   annotations as the prefix and suffix that a model learns from
loss_layout          which tokens of an example are learnt, and who sees whom
"""
